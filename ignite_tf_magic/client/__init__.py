"""The thin client: sockets, topology, page streams, bulk load. `client.connect` is the way in."""
