"""The worker that publishes statistics over UM, as commercial applications and DROs do."""
