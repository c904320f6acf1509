"""What passes stand on: the workspace of a run, placement, the choice of forms, options, checks of direct edits."""
