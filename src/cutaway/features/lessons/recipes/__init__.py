"""Recipes: what a lesson runs, what it says, and where its sentences point."""
