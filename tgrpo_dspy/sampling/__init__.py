"""Drawing rollouts of a program and scoring them."""
