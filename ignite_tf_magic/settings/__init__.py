"""Options: what there are, read from TOML key by key and from the XML of Ignite."""
