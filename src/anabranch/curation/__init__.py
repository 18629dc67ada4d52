"""Sequential traces become parallel trajectories: resumable stages, checks, reports."""
