"""The screens of `stoker top`: what is known (`model`), how it is drawn, and the terminal."""
