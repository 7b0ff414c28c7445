"""Jobs whose processes are killed."""
