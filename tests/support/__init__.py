"""What tests across components share: real service processes, a client, messages, the reference job."""
