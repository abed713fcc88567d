"""Options of this package, read from TOML key by key and from Ignite's XML."""
