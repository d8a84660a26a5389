"""Who is connected to whom in a session of LBT-RU; loss and repairs are those of `dro.proto.repair`."""
