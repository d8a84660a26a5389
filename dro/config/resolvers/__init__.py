"""Configuration files of the daemons of topic resolution."""
