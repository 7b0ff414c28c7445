"""What each command takes, and its help. A command imports what it calls when it is called."""
