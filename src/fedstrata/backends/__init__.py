"""Who trains: a job goes in, replies come out in any order and are put in cohort order before any sum."""
