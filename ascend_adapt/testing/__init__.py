"""What plugin authors and users run to see that patches keep their word."""
