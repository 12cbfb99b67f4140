// All workgroups multiply.
const DIGITS: bool = false;

fn write_beside(place: Place) {}
