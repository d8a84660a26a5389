"""The web monitor's pages: each is made of typed data, which is also served as JSON."""
