"""What `onefold lint` looks at: tools that others keep, and the few rules of this project that no tool knows."""
