"""The pages: each is a function from a request and its connection to a `Content`."""
