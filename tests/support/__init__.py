"""What tests share: made-up models and files, oracles, clients, and servers within the process."""
