"""The verbs over HTTP, and the page that asks them."""
