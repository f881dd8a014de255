"""One command-line script per rule, of the same name: parse arguments, one library call, write outputs."""
