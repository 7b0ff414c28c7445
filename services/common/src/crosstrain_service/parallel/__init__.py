"""Several processes that train together: shares, the launcher that starts and watches them, their channel."""
