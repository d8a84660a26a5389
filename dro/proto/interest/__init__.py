"""Interest in a DRO: TQRs and use queries, interest of other DROs, and the records that it announces itself."""
