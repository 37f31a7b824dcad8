"""Operations on feature maps and boxes that our networks and the published program share, with torch."""
