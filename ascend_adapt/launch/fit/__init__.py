"""`ascend-run --full-size --fit`: tries settings that change how much device memory a job takes, until one fits."""
