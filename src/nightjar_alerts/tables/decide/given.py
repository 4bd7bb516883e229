"""Options that a table cannot use."""

from nightjar_alerts.tables.options import TableError, TableOptions
from nightjar_alerts.tables.roles import Roles


def check_options(roles: Roles, options: TableOptions) -> None:
    """Raise TableError for an option that changes nothing, or contradicts another one."""
    # Where all columns are named, the same options may serve tables of magnitudes and of fluxes.
    has_flux = bool(roles.all("flux")) or options.columns.get("flux") == ""
    has_mag = bool(roles.all("mag")) or options.columns.get("mag") == ""
    if options.flux_unit not in ("", "mag") and options.zero_point is not None:
        raise TableError(f"flux_unit and zero_point are both given: {options.flux_unit} has a zero point of its own")
    if (options.flux_unit not in ("", "mag") or options.zero_point is not None) and options.columns.get("zero_point"):
        raise TableError("columns.zero_point is given together with flux_unit or zero_point: leave one of them out")
    # Other lists of a row, such as forced photometry, may have what one list does not have.
    has_limits = roles.nested or has_mag or any(roles.all(role) for role in ("limit", "upper_limit"))
    has_system = roles.nested or has_mag or roles.reference_mag or roles.all("zero_point") or roles.all("limit")
    useless = {
        "flux_unit": options.flux_unit not in ("", "mag") and not has_flux,
        "zero_point": options.zero_point is not None and not has_flux,
        "mag_err": options.mag_err is not None and not has_mag,
        "signed_magnitudes": bool(options.signed_magnitudes) and not has_mag,
        "filter_numbers": bool(options.filter_numbers) and "band" not in roles.columns,
        "mag_system": bool(options.mag_system) and not has_system,
        "upper_limits": options.upper_limits == "use" and not has_limits,
        "filters": bool(options.filters) and "band" not in roles.columns and not roles.wide,
    }
    needed = {"filter_numbers": "column of filters", "filters": "column of filters", "flux_unit": "flux"}
    needed |= {"upper_limits": "upper limit"}
    for option, is_useless in useless.items():
        if is_useless:
            needs = needed.get(option, "flux" if option == "zero_point" else "magnitude")
            raise TableError(f"{option} is given and changes nothing, because no {needs} is read: leave it out")
    if options.limit_sigma != TableOptions().limit_sigma and options.upper_limits != "use":
        raise TableError("limit_sigma is given and changes nothing, because upper_limits is not 'use': leave it out")
    if options.mag_err is not None and not options.mag_err > 0:
        raise TableError(f"mag_err is {options.mag_err:g}; it must be greater than zero")
