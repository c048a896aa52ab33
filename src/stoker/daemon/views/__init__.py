"""Views: state as the Structs of `stoker.schema` that the API returns."""
