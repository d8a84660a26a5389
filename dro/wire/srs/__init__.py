"""Topic resolution over TCP: frames of RSocket, and the messages of SRS that they carry."""
