"""Astro-MoE: a mixture of sparse experts over multiband light curves and metadata."""
