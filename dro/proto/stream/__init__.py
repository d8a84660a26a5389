"""One originating source as its receivers see it, over all sessions that carry it."""
