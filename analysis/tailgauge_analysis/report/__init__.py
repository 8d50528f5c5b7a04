"""One renderer a format: page, Markdown, terminal, JSON, JUnit; figures. Must not compute what a section can."""
