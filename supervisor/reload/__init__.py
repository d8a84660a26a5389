"""A changed configuration file: plan, trial, steps, and rollback."""
