"""SGLang: hooks on its functions that merge partials of a decode context parallel group."""
