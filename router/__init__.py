"""The route manager: topology, paths, route recalculation."""
