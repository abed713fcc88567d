"""Hosts: maps nodes to hosts, checks capacity, assigns partitions, and checks that all data is present."""
