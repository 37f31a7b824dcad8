"""The page without a server: a folder of static files with which the browser answers questions itself."""
