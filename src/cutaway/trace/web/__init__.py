"""What browsers are sent."""
