"""The processes of the topic resolution daemons."""
