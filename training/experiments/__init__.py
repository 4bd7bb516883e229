"""Published experiments, one module each: ``nightjar-train experiment NAME``."""

EXPERIMENTS = {  # name -> class of options in the module of that name
    "position": "Position",
    "interpolation": "Interpolation",
    "spirals": "SpiralsExperiment",
    "pendulum": "Pendulum",
    "uea": "UEA",
    "encodings": "Encodings",
    "astro-moe": "AstroMoEArm",
    "attention": "AttentionExperiment",
}
