"""Hosts: which node is on which, who has room, who gets which partitions, and whether all of the data is there."""
