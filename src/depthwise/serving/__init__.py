"""The HTTP server: several runs at once, requests in batches, a depth for each request. Needs the extra ``serve``."""
