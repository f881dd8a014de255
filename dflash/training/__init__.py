"""The training program: loops, step, schedule, checkpoints, metrics."""
