"""Types, settings and small tools that every room may use; it uses nothing of `pipeline` itself."""
