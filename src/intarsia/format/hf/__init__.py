"""Hugging Face folders: safetensors files, their index, adapters, small files."""
