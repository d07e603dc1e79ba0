"""What control and a worker say to each other, as bytes: steps and results, moves and reports, and a worker in the same process."""
