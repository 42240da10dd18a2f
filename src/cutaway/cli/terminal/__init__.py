"""What a terminal shows: text, what a person sees beside it, standard streams and signals."""
