"""What a terminal shows and how it is left: text, screens, keys, standard streams and signals."""
