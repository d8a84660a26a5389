"""What differs between two configurations, and what a reload must do about each difference."""
