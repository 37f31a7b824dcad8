"""The page without a server: a folder of static files whose questions the browser answers itself."""
