"""Why a topic does not get from one domain to another: what running DROs say, put together."""
