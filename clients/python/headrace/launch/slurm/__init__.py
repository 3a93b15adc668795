"""Slurm as an engine: each worker is a job array of one task, whose index is the worker's seat.

    job name      headrace-NAME-SEAT
    dependency    singleton: of the jobs with one name and user, Slurm runs one at a time, oldest first
    worker        slurm-JOB-SEAT, known when the job starts

`queue` reads squeue, `script` writes the batch script, `tokens` hands join tokens to jobs that have started, and
`engine` runs the commands.
"""
