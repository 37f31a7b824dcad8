"""What training knows of each system: its data, targets, losses, features and examples."""
