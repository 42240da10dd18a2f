"""How a command line is read: options that commands share, argparse, keywords, completion."""
